package main

import (
	"image/color"
	"io"
	"math"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 12 * vg.Centimeter
	plotHeight = 7 * vg.Centimeter
)

func (g growth) file() string { return "growth-" + g.Name + ".svg" }

// svg writes the drawing. The same numbers give the same bytes.
func (g growth) svg(out io.Writer) error {
	p, err := g.draw()
	if err != nil {
		return err
	}
	canvas := vgsvg.New(plotWidth, plotHeight)
	p.Draw(draw.New(canvas))
	_, err = canvas.WriteTo(out)
	return err
}

// draw shows the medians with their spreads over the sizes, and how high the last
// may be.
func (g growth) draw() (*plot.Plot, error) {
	blue, grey := color.RGBA{R: 0x1f, G: 0x5f, B: 0xa8, A: 0xff}, color.Gray{Y: 0x99}
	p := plot.New()
	p.Title.Text = "Cost of " + g.What
	p.X.Label.Text, p.Y.Label.Text = g.Size, g.Unit
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(g.ticks())
	bound := g.Points[0].Median * g.Bound
	p.Y.Min, p.Y.Max = 0, 1.2*math.Max(bound, g.highest())
	p.X.Min, p.X.Max = float64(g.Points[0].Size)/2, float64(g.Points[len(g.Points)-1].Size)*2

	line, dots, err := plotter.NewLinePoints(g)
	if err != nil {
		return nil, err
	}
	line.Color, dots.Color, line.Width = blue, blue, vg.Points(1.5)
	bars, err := plotter.NewYErrorBars(g)
	if err != nil {
		return nil, err
	}
	bars.Color = blue
	limit := plotter.NewFunction(func(float64) float64 { return bound })
	limit.Color, limit.Dashes = grey, []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(limit, bars, line, dots)
	p.Legend.Add("median, from min to max", line, dots)
	p.Legend.Add(number(g.Bound)+" times the first", limit)
	p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, vg.Points(4), vg.Points(4)
	return p, nil
}

// Len, XY and YError are what plotter draws.
func (g growth) Len() int { return len(g.Points) }

func (g growth) XY(i int) (x, y float64) { return float64(g.Points[i].Size), g.Points[i].Median }

func (g growth) YError(i int) (low, high float64) {
	p := g.Points[i]
	return p.Median - p.Min, p.Max - p.Median
}

func (g growth) highest() float64 {
	var highest float64
	for _, p := range g.Points {
		highest = math.Max(highest, p.Max)
	}
	return highest
}

func (g growth) ticks() []plot.Tick {
	var ticks []plot.Tick
	for _, p := range g.Points {
		ticks = append(ticks, plot.Tick{Value: float64(p.Size), Label: grouped(p.Size)})
	}
	return ticks
}

// grouped is 1234567 as 1,234,567.
func grouped(n int) string { return message.NewPrinter(language.English).Sprint(n) }
