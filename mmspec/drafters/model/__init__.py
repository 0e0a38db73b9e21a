"""A model as the drafter: two models, cascades, ensembles, unlike vocabularies, beams."""
