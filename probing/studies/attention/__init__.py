"""The study `attention`: what the heads of a model do."""
