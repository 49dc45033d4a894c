package devstack

import (
	"fmt"
	"syscall"
)

// loopback is the interface that every server is bound to.
const loopback = "127.0.0.1"

// port is a loopback port that is reserved for one server as long as it is
// held: a socket is bound to it and never listens. The kernel then gives the
// port to nobody who asks for any free one, while the server, which names it,
// gets it (both sides set SO_REUSEADDR). So there is no race between finding a
// port and using it, and a server that is stopped finds its port free again.
type port struct {
	number int
	fd     int
}

func reservePort() (*port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: socket: %w", err)
	}
	number, err := bindAny(fd)
	if err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return &port{number: number, fd: fd}, nil
}

func bindAny(fd int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("getsockname: %w", err)
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}

func (p *port) addr() string   { return fmt.Sprintf("%s:%d", loopback, p.number) }
func (p *port) release() error { return syscall.Close(p.fd) }
