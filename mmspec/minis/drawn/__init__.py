"""Drawn pictures with the words that go with them: the scenes of mini vlm, captioned scenes, and the shapes both are made of."""
