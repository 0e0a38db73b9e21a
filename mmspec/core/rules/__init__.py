"""Accept rules that keep the target's distribution: greedy, coupled, match, token, block, siblings, D-GRS, steps, frames."""
