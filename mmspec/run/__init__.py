"""The request path: a request is resolved to a target, a drafter, a rule and a draft length, decoded, and returned as a result."""
