"""Accept rules that keep the distribution of the target: greedy, coupled, match, token, block, sibling rules, steps, frames."""
