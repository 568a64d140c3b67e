"""Does a probe that was trained where two rules agree generalise by linear order, or by hierarchy?"""
