"""Plans for several machines: who rolls out, who learns, what a rank holds, what moves between them."""
