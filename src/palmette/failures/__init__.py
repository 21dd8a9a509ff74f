"""Known failures of palmette, torch, vLLM, SGLang, TRL and verl as data: how their texts look, what causes them."""
