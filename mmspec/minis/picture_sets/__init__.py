"""Sets of pictures that image models are trained on: a folder of one's own, drawn scenes, Fashion-MNIST and emoji."""
