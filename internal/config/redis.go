package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"

	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/admin"
)

func (c *Config) validateRedis(p *problems) {
	r := &c.Redis
	readSecret(p, "redis.password", &r.Password, r.PasswordFile)
	readSecret(p, "redis.sentinel.password", &r.Sentinel.Password, r.Sentinel.PasswordFile)
	validateAddresses(p, "redis.addresses", r.Addresses)
	validateAddresses(p, "redis.sentinel.addresses", r.Sentinel.Addresses)
	if r.Sentinel.MasterSet == "" {
		r.validateWithoutSentinel(p)
	} else {
		r.validateWithSentinel(p)
	}
	if r.Username != "" && !r.Password.IsSet() && p.sound("redis.password") {
		p.refuse("redis.username", "needs a password: set redis.password or redis.password_file")
	}
	r.TLS.validate(p)
}

// validateAddresses does not repeat an item: it may be a URL with a password.
func validateAddresses(p *problems, path string, addresses []string) {
	for i, address := range addresses {
		if !isAddress(address) {
			p.refuseValue(path, "item %d is no host:port (its text is withheld, it may hold a password); user and password have settings of their own", i+1)
		}
	}
}

func (r Redis) validateWithoutSentinel(p *problems) {
	if len(r.Addresses) == 0 && p.sound("redis.addresses") {
		p.refuse("redis.addresses", "is not set: name at least one server as host:port, or a master set in redis.sentinel")
	}
	if len(r.Sentinel.Addresses) > 0 || r.Sentinel.Username != "" || r.Sentinel.Password.IsSet() {
		p.refuse("redis.sentinel.master_set", "is not set, but other settings of redis.sentinel are: name the master set")
	}
}

func (r Redis) validateWithSentinel(p *problems) {
	if len(r.Sentinel.Addresses) == 0 && p.sound("redis.sentinel.addresses") {
		p.refuse("redis.sentinel.addresses", "is not set: name at least one sentinel as host:port")
	}
	if len(r.Addresses) > 0 {
		p.refuse("redis.addresses", "is set together with redis.sentinel.master_set: the sentinels say where Redis is, name only them")
	}
	if r.Sentinel.Username != "" && !r.Sentinel.Password.IsSet() && p.sound("redis.sentinel.password") {
		p.refuse("redis.sentinel.username", "needs a password: set redis.sentinel.password or redis.sentinel.password_file")
	}
}

func (t TLS) validate(p *problems) {
	if !t.Enabled {
		if t != (TLS{}) {
			p.refuse("redis.tls.enabled", "is false, but other settings of redis.tls are set: connections would not be secured by them")
		}
		return
	}
	if t.InsecureSkipVerify && (t.CAFile != "" || t.ServerName != "") {
		p.refuse("redis.tls.insecure_skip_verify", "is true, so redis.tls.ca_file and redis.tls.server_name would verify nothing: unset it, or them")
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		p.refuse("redis.tls.cert_file", "goes with redis.tls.key_file: set both or none")
		return
	}
	if _, err := t.config(); err != nil {
		p.refuse("redis.tls", "%v", err)
	}
}

// config is nil when TLS is not enabled.
func (t TLS) config() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s holds no certificate in PEM form", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file, key_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// ClientOption is how to reach Redis: addresses, users and TLS. Everything else
// is for the caller to set. It reads the files that the settings name.
func (r Redis) ClientOption() (rueidis.ClientOption, error) {
	tlsConfig, err := r.TLS.config()
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("redis.tls: %w", err)
	}
	option := rueidis.ClientOption{
		InitAddress: r.Addresses,
		Username:    r.Username,
		Password:    r.Password.Reveal(),
		TLSConfig:   tlsConfig,
	}
	if r.Sentinel.MasterSet != "" {
		option.InitAddress = r.Sentinel.Addresses
		option.Sentinel = rueidis.SentinelOption{
			MasterSet: r.Sentinel.MasterSet,
			Username:  r.Sentinel.Username,
			Password:  r.Sentinel.Password.Reveal(),
			TLSConfig: tlsConfig,
		}
	}
	return option, nil
}

func (r Redis) sendsPasswordInTheClear() bool {
	hasPassword := r.Password.IsSet() || r.Sentinel.Password.IsSet()
	return hasPassword && !r.TLS.Enabled && slices.ContainsFunc(slices.Concat(r.Addresses, r.Sentinel.Addresses),
		func(address string) bool { return !admin.IsLoopback(address) })
}
