"""Each judgement of the facts, once: status, verify and health choose from one list."""
