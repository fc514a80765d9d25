// Similarity: collections of vectors, cosine, exact top-k, re-scoring and activation spreading.
export {};
