"""What hidden states achieve without training: word senses and sentence similarity, both by cosine."""
