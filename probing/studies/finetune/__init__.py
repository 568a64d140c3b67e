"""`finetune`: tunes a model on a task with several seeds and orders, and says how much each matters."""
