package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// certificate writes a certificate of 127.0.0.1 that is its own authority.
func certificate(t testing.TB) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	folder := t.TempDir()
	certFile, keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return certFile, keyFile
}

func TestTrustIsOfTheReplicaThenOfTheRouter(t *testing.T) {
	own, _ := certificate(t)
	general, _ := certificate(t)
	c := mustParse(t, fmt.Sprintf(`{"replicas":[{"host":"a","port":1,"scheme":"https","ca_file":%q},{"host":"b","port":1,"scheme":"https"},
		{"host":"c","port":1,"scheme":"https"},{"host":"d","port":1}]}`, own))
	assert.Equal(t, own, c.Replicas[0].CAFile)
	trusts, err := LoadTrusts(general, c)
	require.NoError(t, err)
	of := func(t *testing.T, trusts *Trusts, r Static) *edge.Trust {
		trust, err := trusts.Of(r)
		require.NoError(t, err)
		require.NotNil(t, trust)
		return trust
	}
	a, b := of(t, trusts, c.Replicas[0]), of(t, trusts, c.Replicas[1])
	assert.NotSame(t, a, b)
	assert.Same(t, b, of(t, trusts, c.Replicas[2]), "one file is one trust, so that it is read once")

	// Every file that is wrong is named.
	require.NoError(t, os.Remove(own))
	require.NoError(t, os.WriteFile(general, []byte("x"), 0o600))
	err = trusts.Reload()
	require.ErrorContains(t, err, own)
	require.ErrorContains(t, err, general)
	assert.Same(t, a, of(t, trusts, c.Replicas[0]))
	_, err = LoadTrusts(general, c)
	require.ErrorContains(t, err, own)
	require.ErrorContains(t, err, general)
	_, err = LoadTrusts(general, mustParse(t, `{"replicas":[{"host":"d","port":1}]}`))
	require.ErrorContains(t, err, general, "a file that nobody uses now is read all the same")

	system, err := LoadTrusts("", mustParse(t, `{"replicas":[{"host":"b","port":1,"scheme":"https"}]}`))
	require.NoError(t, err)
	require.NoError(t, system.Reload())
	// A replica that a reload brings.
	own2, _ := certificate(t)
	of(t, system, Static{Scheme: "https", Host: "e", Port: 2, CAFile: own2})
	_, err = system.Of(Static{Scheme: "https", Host: "f", Port: 2, CAFile: own})
	require.ErrorIs(t, err, os.ErrNotExist)
}
