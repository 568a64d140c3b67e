"""`embeddings`: does the start of a document weigh more in its embedding than the end, and can that be undone?"""
