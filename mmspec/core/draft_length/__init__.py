"""Controllers of the draft length: throughput, Thompson sampling, windows by measured cost, and the break-even gate."""
