package devstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Setup makes sure that the needs are met. As root on a Debian machine it
// installs the packages that are missing and writes to out what it does; as an
// ordinary user it fails with a *MissingError.
func Setup(ctx context.Context, out io.Writer, needs ...Need) error {
	return setup(ctx, out, os.Geteuid() == 0, needs)
}

func setup(ctx context.Context, out io.Writer, root bool, needs []Need) error {
	missing := missingPackages(needs)
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
	if missing := missingPackages(needs); len(missing) > 0 {
		return fmt.Errorf("after the installation: %w", &MissingError{Packages: missing})
	}
	return nil
}

func missingPackages(needs []Need) []string {
	var missing []string
	for _, need := range needs {
		if !need.found() {
			missing = append(missing, need.packages...)
		}
	}
	return missing
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
