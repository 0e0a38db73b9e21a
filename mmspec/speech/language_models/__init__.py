"""Published language models over codec codes: their prompts, their codes and their sound."""
