"""A model as the drafter: two models, cascades, ensembles, unlike vocabularies, beams."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
