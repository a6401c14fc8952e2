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

package proxyconfig

// Keys of a proxy Pod's Secret, beside ConfigKey and tailscaled's own state.
const (
	// TailscaledKey is the config file of tailscaled.
	TailscaledKey = "tailscaled.json"
	// DeviceIDKey is the stable ID of the device; its presence says that the
	// device is registered.
	DeviceIDKey = "device_id"
	// DeviceFQDNKey is the device's MagicDNS name.
	DeviceFQDNKey = "device_fqdn"
	// DeviceIPsKey is the device's tailnet addresses, a JSON array.
	DeviceIPsKey = "device_ips"
	// ProfileKey is where tailscaled keeps which login it uses; without it a
	// restarted tailscaled has to log in anew.
	ProfileKey = "_current-profile"
)
