"""Does a probe that was trained where two rules agree go on by linear order, or by hierarchy?"""
