"""What a drafter reads of a prompt with pictures or sound."""
