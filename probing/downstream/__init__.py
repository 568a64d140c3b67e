"""What hidden states are good for without any training: word senses and the similarity of sentences, by cosine."""
