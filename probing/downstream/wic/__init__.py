"""Words in context: does a word mean the same in two sentences?"""
