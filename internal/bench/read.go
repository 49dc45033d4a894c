package main

func readMeasures() []measure { return nil }
