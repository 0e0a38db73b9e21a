def write_text_mini(*a, **k):
    pass
