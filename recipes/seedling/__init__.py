"""How the shipped seedlings were trained."""
