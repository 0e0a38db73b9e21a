"""Side by side: harnesses that run mmspec and its peers in one process, the losslessness check, and the reports of both."""
