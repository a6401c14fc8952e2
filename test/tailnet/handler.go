/*
Copyright 2026 The egress-operator Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package tailnet

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"

	"github.com/tailnet-egress/egress-operator/test/tailnet/control"
)

// DeviceStatus is what Handler tells of a device.
type DeviceStatus struct {
	Name      string       `json:"name"`
	FQDN      string       `json:"fqdn"`
	Addresses []netip.Addr `json:"addresses"`
	Online    bool         `json:"online"`
	Expired   bool         `json:"expired,omitempty"`
	// Namespace is where a person can look at it with ip netns.
	Namespace   string         `json:"namespace"`
	Routes      []netip.Prefix `json:"routes,omitempty"`
	SubnetHosts []netip.Prefix `json:"subnetHosts,omitempty"`
}

// Status is what Handler tells of the device.
func (d *Device) Status() DeviceStatus {
	i := d.inst()
	out := DeviceStatus{Name: d.Name(), Namespace: i.host.Namespace}
	if n, err := d.Node(); err == nil {
		out.FQDN, out.Addresses, out.Online = n.FQDN, n.Addresses, n.Online
		out.Expired, out.Routes = n.Expired(), n.Approved
	}
	for _, sub := range i.subnets() {
		out.SubnetHosts = append(out.SubnetHosts, sub.Addr)
	}
	return out
}

// deviceRequest is the body of requests that make or change a device.
type deviceRequest struct {
	Name     string         `json:"name"`
	TCPPorts []uint16       `json:"tcpPorts"`
	UDPPorts []uint16       `json:"udpPorts"`
	Relay    bool           `json:"relayOnly"`
	Prefixes []netip.Prefix `json:"prefixes"`
	Address  netip.Prefix   `json:"address"`
}

// Handler lets people change a running tailnet:
//
//	GET    /devices                      lists them
//	POST   /devices                      {"name": …, "tcpPorts": […], "udpPorts": […], "relayOnly": …}
//	DELETE /devices/NAME
//	POST   /devices/NAME/recreate        another machine with other addresses, same name
//	POST   /devices/NAME/readdress       other addresses
//	POST   /devices/NAME/expire          and /renew
//	POST   /devices/NAME/rename          {"name": …}
//	POST   /devices/NAME/ports           {"tcpPorts": […], "udpPorts": […]}, served besides the others
//	POST   /devices/NAME/routes          {"prefixes": […]}, advertised and approved
//	POST   /devices/NAME/subnet-hosts    {"name": …, "address": "192.168.7.10/24"}
//
// Each answers with the device, or the devices, as JSON, and returns when the
// tailnet knows of the change; an error is {"error": …}.
func (t *Tailnet) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /devices", func(w http.ResponseWriter, _ *http.Request) {
		out := []DeviceStatus{}
		for _, d := range t.Devices() {
			out = append(out, d.Status())
		}
		answer(w, http.StatusOK, out)
	})
	mux.HandleFunc("POST /devices", t.handleAdd)
	mux.HandleFunc("DELETE /devices/{name}", t.onDevice(func(r *http.Request, d *Device, _ deviceRequest) error {
		return d.Remove(r.Context())
	}))
	for verb, act := range map[string]deviceAction{
		"recreate": func(r *http.Request, d *Device, _ deviceRequest) error {
			_, err := d.Recreate(r.Context())
			return err
		},
		"ports":     func(_ *http.Request, d *Device, req deviceRequest) error { return d.listen(req) },
		"readdress": func(_ *http.Request, d *Device, _ deviceRequest) error { return d.Readdress() },
		"expire":    func(_ *http.Request, d *Device, _ deviceRequest) error { return d.Expire() },
		"renew":     func(_ *http.Request, d *Device, _ deviceRequest) error { return d.Renew() },
		"rename":    func(_ *http.Request, d *Device, req deviceRequest) error { return d.Rename(req.Name) },
		"routes": func(r *http.Request, d *Device, req deviceRequest) error {
			return d.AdvertiseRoutes(r.Context(), req.Prefixes...)
		},
		"subnet-hosts": func(_ *http.Request, d *Device, req deviceRequest) error {
			_, err := d.AddSubnetHost(req.Name, req.Address)
			return err
		},
	} {
		mux.HandleFunc("POST /devices/{name}/"+verb, t.onDevice(act))
	}
	return mux
}

type deviceAction func(*http.Request, *Device, deviceRequest) error

func (t *Tailnet) onDevice(act deviceAction) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, err := t.Device(r.PathValue("name"))
		if err != nil {
			refuse(w, err)
			return
		}
		req, err := decode(r)
		if err != nil {
			refuse(w, err)
			return
		}
		if err := act(r, d, req); err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, d.Status())
	}
}

func (t *Tailnet) handleAdd(w http.ResponseWriter, r *http.Request) {
	req, err := decode(r)
	if err != nil {
		refuse(w, err)
		return
	}
	d, err := t.AddDevice(r.Context(), req.Name, DeviceOptions{
		TCPPorts: req.TCPPorts, UDPPorts: req.UDPPorts, RelayOnly: req.Relay,
	})
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusCreated, d.Status())
}

func (d *Device) listen(req deviceRequest) error {
	for _, port := range req.TCPPorts {
		if err := d.Listen(tcp, port); err != nil {
			return err
		}
	}
	for _, port := range req.UDPPorts {
		if err := d.Listen(udp, port); err != nil {
			return err
		}
	}
	return nil
}

func decode(r *http.Request) (deviceRequest, error) {
	var req deviceRequest
	decoder := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&req); err != nil && !errors.Is(err, io.EOF) {
		return req, errBadRequest{err}
	}
	return req, nil
}

type errBadRequest struct{ error }

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var bad errBadRequest
	switch {
	case errors.Is(err, ErrNoDevice), errors.Is(err, control.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, ErrDeviceExists):
		status = http.StatusConflict
	case errors.As(err, &bad), errors.Is(err, ErrBadName):
		status = http.StatusBadRequest
	}
	answer(w, status, map[string]string{"error": err.Error()})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(body)
}
