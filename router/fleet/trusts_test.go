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
	a, b := trusts.Of("https://a:1"), trusts.Of("https://b:1")
	require.NotNil(t, a)
	require.NotNil(t, b)
	assert.NotSame(t, a, b)
	assert.Same(t, b, trusts.Of("https://c:1"), "one file is one trust, so that connections can be shared")
	assert.Nil(t, trusts.Of("http://d:1"))

	// Every file that is wrong is named, and nothing has changed.
	require.NoError(t, os.Remove(own))
	require.NoError(t, os.WriteFile(general, []byte("x"), 0o600))
	err = trusts.Reload(c)
	require.ErrorContains(t, err, own)
	require.ErrorContains(t, err, general)
	assert.Same(t, a, trusts.Of("https://a:1"))
	_, err = LoadTrusts(general, mustParse(t, `{"replicas":[{"host":"d","port":1}]}`))
	require.ErrorContains(t, err, general, "a file that nobody uses now is read all the same")
	system, err := LoadTrusts("", mustParse(t, `{"replicas":[{"host":"b","port":1,"scheme":"https"}]}`))
	require.NoError(t, err)
	assert.NotNil(t, system.Of("https://b:1"))
}

func TestAddressOfReplica(t *testing.T) {
	assert.Equal(t, "[fd00::1]:65535", addressOf("https://[fd00::1]:65535"))
	assert.Equal(t, "a:1", addressOf("http://a:1"))
}
