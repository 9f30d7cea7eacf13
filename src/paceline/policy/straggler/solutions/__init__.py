"""The solutions that come with paceline; `paceline.policy.straggler.registry` names them."""
