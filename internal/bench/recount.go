package main

func recountMeasures() []measure { return nil }
