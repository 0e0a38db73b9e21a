"""Sets of pictures that image models are trained on: a folder of one's own, such as drawn scenes, and Fashion-MNIST."""
