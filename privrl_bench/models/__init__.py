"""Networks and policies as pure functions of flat parameter vectors."""
