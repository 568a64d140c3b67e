"""The study `hierarchy`: do probes that were trained where two rules agree generalise by linear order?"""
