"""What was done with replan: the paper's figures and claims, the follow-up's and our own."""
