"""Accept rules that depart from the target's distribution, metered as drift where possible."""
