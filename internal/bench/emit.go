package main

func emitMeasures() []measure { return nil }
