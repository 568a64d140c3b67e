"""Words in Context: does a word have the same sense in two sentences?"""
