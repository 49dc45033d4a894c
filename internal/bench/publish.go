package main

func publishMeasures() []measure { return nil }
