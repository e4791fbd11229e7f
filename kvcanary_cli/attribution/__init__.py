"""Who did it: ownership of every slot, who wrote it last, and the finding that follows."""
