"""Tables of a shop as a recommender's training data: histories, a train and test split, and semantic ids."""
