"""How good speech is: word errors, likeness of voices, and predicted opinion scores, with bootstrap intervals."""
