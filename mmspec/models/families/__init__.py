"""How each family of transformers models is driven."""
