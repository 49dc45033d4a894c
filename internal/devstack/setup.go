package devstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Setup makes sure that the server binaries are there. As root on a Debian
// machine it installs the missing packages and writes to out what it does; as
// an ordinary user it fails with a *MissingError.
func Setup(ctx context.Context, out io.Writer) error {
	return setup(ctx, out, os.Geteuid() == 0)
}

func setup(ctx context.Context, out io.Writer, root bool) error {
	missing := Missing()
	if len(missing) == 0 {
		return nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || !root {
		return &MissingError{Packages: missing}
	}
	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	for _, args := range [][]string{{"update"}, install} {
		if err := runLoud(ctx, out, apt, args...); err != nil {
			return err
		}
	}
	if missing := Missing(); len(missing) > 0 {
		return fmt.Errorf("after the installation: %w", &MissingError{Packages: missing})
	}
	return nil
}

// runLoud says what it runs, and shows what that prints.
func runLoud(ctx context.Context, out io.Writer, name string, args ...string) error {
	line := name + " " + strings.Join(args, " ")
	if _, err := fmt.Fprintf(out, "setup: %s\n", line); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("setup: %s: %w", line, err)
	}
	return nil
}
