"""Accept rules that depart from the target, by an amount that is measured as drift where it can be."""
