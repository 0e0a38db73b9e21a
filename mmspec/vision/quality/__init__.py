"""How far apart two sets of images are."""
