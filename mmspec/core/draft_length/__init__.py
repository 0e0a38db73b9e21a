"""Controllers of the draft length: throughput, Thompson sampling, hill climbing, and the break-even gate."""
